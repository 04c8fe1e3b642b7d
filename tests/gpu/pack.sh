#!/bin/bash
# pack.sh - gathers what tests/gpu/run.sh needs on a machine that is bare and offline.
#
# Packages of luajit, busted, Open MPI and the libraries to build with are downloaded and unpacked
# into build/gpu-tools, which travels with the source (64 MiB together). Nothing is installed.
cd "$(dirname "$0")/../.." || exit 1
set -e
tools=$PWD/build/gpu-tools
wanted='luajit libluajit-5.1-dev lua-busted openmpi-bin libopenmpi3 libjansson-dev libedit-dev
    libxxhash-dev pkgconf'
# What every machine with a C compiler has, and Open MPI's ways to hardware that it does without.
left_out='^(libc6|libc6-dev|libc-dev-bin|linux-libc-dev|libgcc-s1|libstdc..6|gcc-.*|libcrypt.*|'
left_out+='debconf|cdebconf|dpkg|tar|perl.*|install-info|passwd|adduser|libpam.*|lua5\..|lib(selinux|'
left_out+='semanage|sepol|audit|debian-installer|newt|slang|textwrap|icu|x11|xcb|xau|xdmcp|xext|'
left_out+='xnvctrl).*|ocl-icd.*|openssh.*|ncurses-bin|libhwloc-plugins|libxml2|libdb5.*|libpciaccess0)$'

rm -rf "$tools" && mkdir -p "$tools/debs" && cd "$tools/debs"
names=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances $wanted | grep -E '^[a-z0-9]' | sort -u | grep -vE "$left_out")
apt-get -q download $names
for deb in *.deb; do dpkg -x "$deb" "$tools"; done
cd "$tools" && rm -rf debs usr/share/doc usr/share/man usr/share/locale usr/lib/*/*.a
# Links from the root of a machine become links within.
find . -type l -lname '/*' | while read -r link; do
    ln -sfnr "$tools$(readlink "$link")" "$link"
done
du -sh "$tools"
