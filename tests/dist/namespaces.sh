#!/bin/bash
# namespaces.sh - runs a command on the first of two hosts, a and b, that are network namespaces
# with a cable between them.
#
#   tests/dist/namespaces.sh [--rate 1gbit] command [arguments]
#
# Both hosts have names, addresses (10.77.0.1 and .2, in /etc/hosts too), processes and a /dev/shm of
# their own; $TMPDIR lies there too. mpirun reaches b as it would with ssh: with a shell that starts
# in / and knows nothing of the environment here. The command may cut the cable: ip link set cable
# down, and up again. --rate shapes both directions (tc tbf: 1gbit, 100mbit).
#
# Whatever happens, nothing is left: all of it lives in a process namespace, and ends with this
# process (also by SIGKILL). A user who is not root is root in a user namespace, where the system
# allows those. Status 77, and one sentence: this system allows none of it; 1: a program is missing.
PATH=$PATH:/usr/sbin:/sbin

unavailable() {
    echo "namespaces.sh: no two hosts here: $1"
    exit 77
}

if [[ $1 != --inside ]]; then
    for program in unshare nsenter ip tc; do
        command -v $program >/dev/null && continue
        echo "namespaces.sh: there is no program $program (Debian: apt install iproute2 util-linux)"
        exit 1
    done
    spaces=(unshare --fork --pid --kill-child --mount-proc --mount --net --uts)
    [[ $(id -u) == 0 ]] || spaces+=(--user --map-root-user)
    "${spaces[@]}" sh -c 'mount -t tmpfs shm /dev/shm && ip link add cable type veth' 2>/dev/null ||
        unavailable 'the system does not allow network namespaces (CAP_SYS_ADMIN)'
    exec "${spaces[@]}" "$0" --inside "$@"
fi

# ---- the first process of the namespaces, on host a ----

shift
rate=
if [[ $1 == --rate ]]; then
    rate=$2
    shift 2
fi

set -e
# Each host shares memory with nobody: ranks on two of them have to send what they exchange.
mount -t tmpfs shm /dev/shm
printf '127.0.0.1 localhost\n10.77.0.1 a\n10.77.0.2 b\n' >/dev/shm/hosts
mount --bind /dev/shm/hosts /etc/hosts
hostname a
unshare --net --uts --mount sh -c 'hostname b; mount -t tmpfs shm /dev/shm; mkdir /dev/shm/tmp
    touch /dev/shm/ready; exec sleep infinity' &
b=$!
until [[ -e /proc/$b/root/dev/shm/ready ]]; do sleep 0.01; done
on_b="nsenter --target $b --net --uts --mount"

ip link add cable type veth peer name cable netns $b
for host in '' "$on_b"; do
    $host ip link set lo up
    $host ip link set cable up
    [[ -z $rate ]] || $host tc qdisc add dev cable root tbf rate "$rate" burst 256k latency 100ms
done
ip address add 10.77.0.1/24 dev cable
$on_b ip address add 10.77.0.2/24 dev cable

cat >/dev/shm/remote-shell <<END
#!/bin/sh
# remote-shell HOST COMMAND ...
case \$1 in
b | 10.77.0.2) ;;
*) echo "remote-shell: no host \$1" >&2 && exit 255 ;;
esac
shift
exec $on_b env -i HOME=/ PATH='$PATH' TMPDIR=/dev/shm/tmp sh -c "cd /; \$*"
END
chmod +x /dev/shm/remote-shell
cp /dev/shm/remote-shell /proc/$b/root/dev/shm # the daemon there looks for it too
mkdir /dev/shm/tmp
export TMPDIR=/dev/shm/tmp OMPI_MCA_plm_rsh_agent=/dev/shm/remote-shell

"$@"
