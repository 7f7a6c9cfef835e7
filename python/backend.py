# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of ckptd: the package, and libckpt.so, libckpt-nccl.so, ckptd and ckptctl inside it. A build backend
(PEP 517 and 660).

Called by pip (`pip install ./python`, also with -e), and by `make wheel` as `python3 python/backend.py DIRECTORY`.
Standard library only, Python >= 3.9.

Invariants: a wheel whose tag is manylinux has programs that need nothing but glibc, of the version that the tag says.
`make wheel` makes no other one; pip, where a library cannot be linked statically, makes one for this machine alone,
whose tag is linux. The same inputs give the same bytes.
"""

import base64
import ctypes
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILD = os.path.join(ROOT, "build")
PROGRAMS = ("libckpt.so", "libckpt-nccl.so", "ckptd", "ckptctl")
GLIBC = re.compile(r"^(libc|libm|libpthread|libdl|librt|ld-linux[a-z0-9_-]*)\.so\.\d+$")
MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le", 22: "s390x"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of each file in the wheel: the bytes do not depend on the clock
SUMMARY = "Checkpoints of sharded training jobs that do not stop the training"


def version():
    """The version, which is that of ckpt.h. (tests/python/test_header.py compares them.)"""
    with open(os.path.join(HERE, "ckptd", "_abi.py"), encoding="utf-8") as f:
        return re.search(r'^CKPT_VERSION: Final = "(.*)"', f.read(), re.M).group(1)


# --- the programs ---
def built_version(path):
    """The version of a libckpt.so; None: it is not there, or cannot be loaded."""
    try:
        call = ctypes.CDLL(path).ckpt_version
    except (OSError, AttributeError):
        return None
    call.restype = ctypes.c_char_p
    return call().decode()


def programs():
    """Paths of the programs in the clone's build/, which are made if one is missing or of another version."""
    paths = [os.path.join(BUILD, name) for name in PROGRAMS]
    if all(map(os.path.isfile, paths)) and built_version(paths[0]) == version():
        return paths
    if not os.path.isfile(os.path.join(ROOT, "ckpt", "ckpt.h")):
        raise SystemExit(
            "ckptd: %s is not in a clone of ckptd, so its programs cannot be built: install a wheel" % HERE
        )
    command = ["make", "-C", ROOT] + [os.path.join("build", name) for name in PROGRAMS]
    print("ckptd: building libckpt.so, ckptd and ckptctl: %s" % " ".join(command), flush=True)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    try:
        subprocess.run(command + ["-j%d" % (os.cpu_count() or 1)], env=env, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        raise SystemExit(
            "ckptd: its programs could not be built (%s): run `make deps` and `make` in %s" % (e, ROOT)
        ) from e
    return paths


class Elf:
    """What an ELF file needs: .machine, .needed (libraries), .versions (of their symbols). 64 bits, either byte
    order."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        if self.data[:5] != b"\x7fELF\x02":
            raise SystemExit("ckptd: %s is not a 64-bit ELF file" % path)
        self.order = "<" if self.data[5] == 1 else ">"
        self.machine = self.read("H", 18)[0]
        self.needed, self.versions = [], []
        sections = self.sections()
        for kind, offset, size, link, info in sections:
            if kind == 6:  # SHT_DYNAMIC
                names = sections[link][1]
                for at in range(offset, offset + size, 16):
                    tag, value = self.read("QQ", at)
                    if tag == 1:  # DT_NEEDED
                        self.needed.append(self.string(names + value))
            elif kind == 0x6FFFFFFE:  # SHT_GNU_verneed
                self.read_versions(offset, info, sections[link][1])

    def read(self, form, at):
        return struct.unpack_from(self.order + form, self.data, at)

    def string(self, at):
        return self.data[at : self.data.index(b"\0", at)].decode()

    def sections(self):
        """(type, offset, size, link, info) of each."""
        start, size, n = self.read("Q", 40)[0], *self.read("HH", 58)
        out = []
        for i in range(n):
            kind, _flags, _addr, offset, length, link, info = self.read("IQQQQII", start + i * size + 4)
            out.append((kind, offset, length, link, info))
        return out

    def read_versions(self, at, n, names):
        for _ in range(n):
            _version, count, _file, aux, after = self.read("HHIII", at)
            entry = at + aux
            for _ in range(count):
                _hash, _flags, _other, name, follows = self.read("IHHII", entry)
                self.versions.append(self.string(names + name))
                entry += follows
            at += after


def platform_tag(paths, portable):
    """manylinux_X_Y_ARCH: X.Y is the newest glibc whose symbols the files need, and they need nothing but glibc.

    Otherwise linux_ARCH, which is right for this machine; if portable, SystemExit names what they need.
    """
    newest, glibc, others = (2, 17), False, []
    for path in paths:
        elf = Elf(path)
        machine = MACHINES.get(elf.machine, os.uname().machine)
        glibc = glibc or "libc.so.6" in elf.needed
        others += ["%s needs %s" % (path, name) for name in elf.needed if not GLIBC.match(name)]
        for name in elf.versions:
            found = re.match(r"^GLIBC_(\d+)\.(\d+)", "GLIBC_2.36" if name == "GLIBC_ABI_DT_RELR" else name)
            if found:
                newest = max(newest, (int(found.group(1)), int(found.group(2))))
    if glibc and not others:
        return "manylinux_%d_%d_%s" % (newest + (machine,))
    why = "; ".join(others) or "the programs do not use glibc"
    if portable:
        raise SystemExit("ckptd: the wheel would not run on other machines: %s: link it statically" % why)
    print("ckptd: the wheel is for this machine alone: %s" % why, flush=True)
    return "linux_" + machine


# --- the wheel ---
def metadata():
    return """Metadata-Version: 2.1
Name: ckptd
Version: %s
Summary: %s
License: Apache-2.0
Requires-Python: >=3.9
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
""" % (version(), SUMMARY)


ENTRY_POINTS = """[console_scripts]
ckptctl = ckptd.__main__:ckptctl
ckptd = ckptd.__main__:daemon
"""


def wheel_text(tag):
    pure = "true" if tag.endswith("-any") else "false"
    return "Wheel-Version: 1.0\nGenerator: ckptd\nRoot-Is-Purelib: %s\nTag: %s\n" % (pure, tag)


def write_wheel(directory, tag, files):
    """files: (name in the wheel, bytes, executable). Its file name."""
    info = "ckptd-%s.dist-info" % version()
    with open(os.path.join(ROOT, "LICENSE"), "rb") as f:
        licence = f.read()
    files = sorted(files) + [
        (info + "/LICENSE", licence, False),
        (info + "/METADATA", metadata().encode(), False),
        (info + "/WHEEL", wheel_text(tag).encode(), False),
        (info + "/entry_points.txt", ENTRY_POINTS.encode(), False),
    ]
    record = ""
    for name, data, _executable in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += "%s,sha256=%s,%d\n" % (name, digest, len(data))
    record += info + "/RECORD,,\n"
    files.append((info + "/RECORD", record.encode(), False))
    name = "ckptd-%s-%s.whl" % (version(), tag)
    os.makedirs(directory, exist_ok=True)
    target = os.path.join(directory, name)
    with zipfile.ZipFile(target + ".new", "w", zipfile.ZIP_DEFLATED) as z:
        for path, data, executable in files:
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            z.writestr(entry, data)
    os.replace(target + ".new", target)
    return name


def package_files():
    """The files of the package in this tree, without what Python and builds leave there."""
    out = []
    for directory, below, names in os.walk(os.path.join(HERE, "ckptd")):
        below[:] = sorted(name for name in below if name not in ("__pycache__", "_programs"))
        for name in sorted(names):
            if name.endswith(".py") or name == "py.typed":
                path = os.path.join(directory, name)
                with open(path, "rb") as f:
                    out.append((os.path.relpath(path, HERE), f.read(), False))
    return out


def stripped(paths):
    """The programs without debugging information, as the wheel's files."""
    out = []
    with tempfile.TemporaryDirectory() as work:
        for path in paths:
            copy = os.path.join(work, os.path.basename(path))
            shutil.copyfile(path, copy)
            if shutil.which("strip"):
                subprocess.run(["strip", "--strip-debug", copy], check=True)
            with open(copy, "rb") as f:
                out.append(("ckptd/_programs/" + os.path.basename(path), f.read(), True))
    return out


# --- hooks of PEP 517 and 660 ---
def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None, portable=False):
    paths = programs()
    return write_wheel(wheel_directory, "py3-none-" + platform_tag(paths, portable), package_files() + stripped(paths))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel that only points to this tree; the programs are those in the clone's build/."""
    programs()
    return write_wheel(wheel_directory, "py3-none-any", [("__editable__.ckptd.pth", (HERE + "\n").encode(), False)])


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("ckptd: there is no source distribution of the package alone: clone the repository")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: backend.py DIRECTORY")
    for old in os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else []:
        if old.endswith(".whl"):
            os.remove(os.path.join(sys.argv[1], old))
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1], portable=True)))
