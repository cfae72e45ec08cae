#!/bin/bash
# setup.sh PACKAGE…: installs the Debian packages that are missing.
set -eu
missing=()
for p in "$@"; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
	echo "please install: ${missing[*]}" >&2
	exit 1
fi
sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
echo "installing ${missing[*]} (once)" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	cat "$log" >&2
	exit 1
fi
