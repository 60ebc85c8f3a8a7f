"""The hostile mix: bombs, floods, orphans and kills of executors at random, beside work that has to keep finishing; afterwards the machine
is as it was before.
"""
