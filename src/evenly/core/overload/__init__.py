"""Chapter 21: what happens when there is more to do than can be done."""
