# SPDX-License-Identifier: Apache-2.0
"""The options of a communicator."""
import ctypes
import inspect
from typing import Callable, Optional

from ._library import Config, InvalidArgument, in_range


def config_of(codec: Optional[str] = None, algorithm: Optional[str] = None, channels: int = 0,
            reproducible: bool = False, preserve_input: bool = False,
            init_timeout: float = 0, op_timeout: float = 0, heartbeat: float = 0,
            dead_timeout: float = 0, socket_ifname: Optional[str] = None,
            name: Optional[str] = None) -> Config:
    """ccl_config_t. Times are in seconds; 0 and None mean the default."""
    def milliseconds(what, seconds):
        if seconds == 0 or (what == "dead_timeout" and seconds == -1):
            return int(seconds)
        if not 0.001 <= seconds <= 2147483:
            raise InvalidArgument(f"{what}: {seconds} is not in 0.001..2147483 seconds")
        return int(seconds * 1000)

    def text(value):
        return None if value is None else value.encode()

    return Config(ctypes.sizeof(Config), 1, text(codec), text(algorithm),
                  in_range("channels", channels),
                  int(reproducible), int(preserve_input),
                  milliseconds("init_timeout", init_timeout),
                  milliseconds("op_timeout", op_timeout), milliseconds("heartbeat", heartbeat),
                  milliseconds("dead_timeout", dead_timeout), text(socket_ifname), text(name))


def takes_options(function: Callable) -> Callable:
    """help() and editors show the options of config_of in place of **config."""
    own = inspect.signature(function)
    named = [parameter for parameter in own.parameters.values() if parameter.kind != parameter.VAR_KEYWORD]
    options = [option.replace(kind=option.KEYWORD_ONLY) for option in inspect.signature(config_of).parameters.values()]
    function.__signature__ = own.replace(parameters=named + options)
    return function
