#!/usr/bin/env bash
# Debian only, as root: install podman and make a small image with Python and git from a root file system built on the spot, so that the container
# fence can be tested without any image registry. Prints how to use it. Takes about five minutes; does nothing when the image is there already.
set -euo pipefail
image=localhost/hl-lab:1
if ! { command -v podman && podman image exists "$image"; } >/dev/null 2>&1; then
    apt-get install -y -qq --no-install-recommends podman runc mmdebstrap >/dev/null
    archive=$(mktemp --suffix=.tar)
    trap 'rm -f "$archive"' EXIT
    mmdebstrap --quiet --variant=essential --include=python3,git "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$archive"
    podman import --quiet "$archive" hl-lab:1 >/dev/null
fi
echo "container image: $image (for the tests: HL_IMAGE=$image)"
