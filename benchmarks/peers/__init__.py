"""Other frameworks, which do the same work in environments of their own."""
