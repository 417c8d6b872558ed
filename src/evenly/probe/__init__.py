"""Ask backends by UDP how they are, and answer: one small datagram each way."""
