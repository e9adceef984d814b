"""Showing results to people, from their JSON documents alone."""
