"""A model that answers over HTTP: what ``hydractl serve`` runs."""
