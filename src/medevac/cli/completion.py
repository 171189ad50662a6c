"""`medevac completion SHELL`: print a completion script."""

from __future__ import annotations

from typing import Literal

from medevac.cli.exits import Exit


def completion(shell: Literal["bash", "zsh", "fish"], /) -> Exit:
    """Print the completion script of a shell.

    bash: `medevac completion bash > ~/.local/share/bash-completion/completions/medevac`

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from medevac.cli.main import build

    print(build().generate_completion(prog_name="medevac", shell=shell))
    return Exit.DONE
