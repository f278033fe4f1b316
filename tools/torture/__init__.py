"""The fault campaign: commands are killed, refused room, lied to about the time, and given damaged files.

`make torture` runs it and writes `docs/torture.md`. A fault is survived where the command ends in one line that says
what happened, or is not hurt at all, and, typed again, leaves what it leaves undisturbed; all else is lost.
"""
