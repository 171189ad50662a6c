"""The `medevac` command: main.py has the table of commands; each command's module is imported when it is asked for."""
