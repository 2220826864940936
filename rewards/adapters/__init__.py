"""The rewards as trainers call them: TRL, verl and OpenRLHF. None of these packages is imported, and no torch."""
