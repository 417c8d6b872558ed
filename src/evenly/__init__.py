"""Load balancing and overload control for Python services."""
