"""The stack of the SRE book's figure 21-2: frontend → A → B → DB frontend."""
