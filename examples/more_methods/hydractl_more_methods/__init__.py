"""ABNN, Masksembles, snapshots, SWA and SWAG, each in a module that declares its ``METHOD``."""
