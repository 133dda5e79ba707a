"""A bundle's programs at work: in this process, or in a confined process of their own."""
