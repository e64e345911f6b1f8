"""Apply the facts of facts.json to problems: which engines may compute them, in which order."""
