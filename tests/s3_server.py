"""OpenStack Swift with its S3 API as one process: `python s3_server.py FOLDER PORT`.

Swift is a real object store that pip installs within seconds. It checks signatures and rights, keeps parts of large
files and serves ranges, as a mock (moto, s3rver) would not. MinIO, Garage and Ceph are in no package registry, or need
an account and a cluster of their own. Swift is several servers. Here all run in one process, on one disk.

While the file FOLDER/trouble exists, the server answers 503 if the file says so. If it says 403, the server refuses to
write or delete. Any other number is the delay of each answer in seconds.
"""

import os
import signal
import sys
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import eventlet
from eventlet import wsgi
from swift.common import utils
from swift.common.ring import RingData
from swift.common.swob import Request
from swift.common.wsgi import loadapp

LOCAL = "127.0.0.1"
BUCKET = "manyhands"
WRITES, ANSWERS = ("PUT", "POST", "DELETE"), {"503": "503 Slow Down", "403": "403 Forbidden"}
STORES = ("account", "container", "object")
COMMON = """[DEFAULT]
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
log_level = CRITICAL
"""
STORE = """[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
disable_fallocate = true
"""
# The key of a user is test:NAME. A reader may read everything and write nothing.
PROXY = """[pipeline:main]
pipeline = catch_errors gatekeeper listing_formats s3api tempauth copy slo proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_writer = writing .admin
user_test_reader = reading .reseller_reader
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


def main(folder: Path, port: int) -> None:
    (folder / "devices" / "disk").mkdir(parents=True, exist_ok=True)
    utils.HASH_PATH_SUFFIX = b"tests"  # else Swift reads a file in /etc
    sockets = {name: eventlet.listen((LOCAL, 0)) for name in STORES}
    for name, socket in sockets.items():
        where = {"ip": LOCAL, "port": socket.getsockname()[1]}
        disk = {"id": 0, "region": 1, "zone": 1, "device": "disk", "weight": 1.0}
        replication = {f"replication_{key}": value for key, value in where.items()}
        RingData([array("H", [0])], [disk | where | replication], 32).save(str(folder / f"{name}.ring.gz"))
    for name, socket in sockets.items():
        eventlet.spawn(wsgi.server, socket, loaded(folder, name, STORE.format(name=name)), log_output=False)
    app = loaded(folder, "proxy", PROXY)
    allowed = {"REQUEST_METHOD": "PUT", "swift.authorize_override": True, "swift.authorize": lambda _: None}
    Request.blank(f"/v1/AUTH_test/{BUCKET}", environ=allowed).get_response(app)
    wsgi.server(eventlet.listen((LOCAL, port)), troubled(app, folder / "trouble"), log_output=False)


def loaded(folder: Path, name: str, text: str) -> Any:
    path = folder / f"{name}.conf"
    path.write_text(COMMON.format(folder=folder) + text)
    return loadapp(str(path), allow_modify_pipeline=name == "proxy")


def troubled(app: Any, trouble: Path) -> Any:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        said = trouble.read_text() if trouble.exists() else ""
        if said == "503" or (said == "403" and environ["REQUEST_METHOD"] in WRITES):
            start_response(ANSWERS[said], [("Content-Length", "0")])
            return [b""]
        eventlet.sleep(0 if said == "403" else float(said or 0))
        found: Iterable[bytes] = app(environ, start_response)
        return found

    return answer


if __name__ == "__main__":
    eventlet.monkey_patch()
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    main(Path(sys.argv[1]), int(sys.argv[2]))
