"""The coordinator's half of secure aggregation: cohorts, what each is asked, and what sums come to."""
