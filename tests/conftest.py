"""What every test shares."""

from hypothesis import settings

# A shared machine makes any deadline a matter of luck; pytest's own timeout catches what hangs.
settings.register_profile("edge-fl", deadline=None)
settings.load_profile("edge-fl")
