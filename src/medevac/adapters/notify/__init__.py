"""Telling a person: a log file, a command of the site's (`ports.notifier.Notifier`)."""

from medevac.adapters.notify.command import CommandNotifier
from medevac.adapters.notify.logfile import LogNotifier
from medevac.adapters.notify.several import SeveralNotifiers

__all__ = ["CommandNotifier", "LogNotifier", "SeveralNotifiers"]
