"""Replays: recordings of a few replicas, as a video, as a page that plays in a browser, or in a window.

from gpu_envs import replays
replays.record("runs/taggers", replicas=4).save_html("taggers.html")
"""

from gpu_envs.replays.callback import RecordReplays as RecordReplays
from gpu_envs.replays.recording import record as record
from gpu_envs.replays.replay import Replay as Replay

__all__ = ["RecordReplays", "Replay", "record"]
