"""The figures of the SRE book's chapters 20 and 21, from runs of our own."""
