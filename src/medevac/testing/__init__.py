"""Contract suites for anyone's own adapter: subclass one in your tests and give the fixture it asks for (pytest)."""
