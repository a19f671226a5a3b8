# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the main thread waits in the library.

Python runs its handler of SIGINT between two steps of Python code, so never inside a call that
waits for a late rank. A thread here learns of the signal, and ends that call.
"""
import ctypes
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import weakref

_FOLDER = str(pathlib.Path(__file__).parent) + os.sep
_PATIENCE = 1.0  # seconds in which a call may end by itself
_sockets = []  # the two ends of the way on which Python reports signals, once the thread runs


def watch() -> None:
    """Before the first communicator. Does nothing where the program treats signals by itself, or
    in another thread than the main one, to which Python gives signals."""
    if _sockets or threading.current_thread() is not threading.main_thread():
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    former = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if former != -1:
        signal.set_wakeup_fd(former)
        reader.close()
        writer.close()
        return
    _sockets.extend((reader, writer))
    threading.Thread(target=_serve, args=(reader,), name="inccl-interrupt", daemon=True).start()


def _forget() -> None:
    """In a forked child, which has no such thread and whose signals are not the parent's."""
    if _sockets:
        signal.set_wakeup_fd(-1)
        _sockets.clear()


os.register_at_fork(after_in_child=_forget)


def _place():
    """(frame, instruction) of the main thread in this package, else None."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    inside = frame is not None and frame.f_code.co_filename.startswith(_FOLDER)
    return (frame, frame.f_lasti) if inside else None


def _communicator(frame):
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDER):
        comm = frame.f_locals.get("self")
        if getattr(comm, "_handle", None) is not None and hasattr(comm, "revoke"):
            return comm
        frame = frame.f_back
    return None


def _serve(reader):
    revoked = None
    while True:
        number = reader.recv(1)
        if number == bytes([signal.SIGINT]) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            revoked = _end_call(revoked)


def _end_call(revoked):
    """Ends the main thread's call. `revoked` and what is returned: the communicator that was revoked last, weakly; frames
    are not kept, as they would keep the buffers of their calls."""
    place = _place()
    time.sleep(_PATIENCE)
    if place is None or place != _place():
        return revoked
    comm = _communicator(place[0])
    if comm is None or (revoked is not None and revoked() is comm):  # no call that revoking can end
        ctypes.CDLL(None).signal(signal.SIGINT, ctypes.c_void_p(0))  # as without Python
        os.kill(os.getpid(), signal.SIGINT)
        return revoked
    try:
        comm.revoke()
    except Exception:  # the communicator has ended meanwhile, and with it the call
        pass
    return weakref.ref(comm)
