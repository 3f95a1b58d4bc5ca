"""The smallest complete backend, which the tutorial "Write a backend" shows whole."""
