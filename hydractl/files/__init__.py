"""The files hydractl writes and reads: checkpoints, their descriptions, fingerprints; nothing runs here."""
