"""What the hot paths cost, as ratios: both sides are measured in one interleaved run."""
