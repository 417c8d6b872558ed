"""The policies: how one backend is chosen for one attempt, one file each."""
