#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command as root on a virtual machine that has two RDMA devices: soft RoCE, rxe0 and rxe1, on the two ends of a
# virtual Ethernet cable, roce0 and roce1. Packets between the devices take the cable. The guest has this system's newest
# installed kernel and sees this machine's files; what it writes is gone afterwards, but for what it writes below /guest-out.
# QEMU uses KVM where the processor and the kernel have it, and else emulates 2 processors in software: nothing measured there
# says anything about speed.
#
# usage: tests/rdma/guest.sh COMMAND [ARGUMENT...]
#   GUEST_SECONDS  limit of everything, 600 by default
#   GUEST_OUT      a directory that is the guest's /guest-out
#   GUEST_KVM      auto (default), try: KVM even where the processor does not report it, never
# Exit status: that of the command; 77 if this machine lacks what the guest needs, with the reason; 124 at the limit.
set -euo pipefail
[ $# -gt 0 ] || { sed -n 's/^# \{0,1\}//; 3,13p' "$0" >&2; exit 2; }

skip() { echo "no RDMA guest: $*; see docs/rdma.md"; exit 77; }
for program in qemu-system-x86_64 cpio gzip; do command -v "$program" > /dev/null || skip "no $program"; done
[ "$(uname -m)" = x86_64 ] || skip "this is no x86-64 machine"
busybox=$(command -v busybox) || skip "no busybox"
ldd "$busybox" > /dev/null 2>&1 && skip "busybox is linked dynamically (Debian: busybox-static)"
for program in ip modprobe rdma; do
  PATH=$PATH:/usr/sbin:/sbin command -v "$program" > /dev/null || skip "no $program"
done
kernel= version=
for candidate in $(ls /boot/vmlinuz-* 2> /dev/null | sort -V); do
  [ -f "/lib/modules/${candidate#/boot/vmlinuz-}/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko" ] || continue
  [ -r "$candidate" ] && kernel=$candidate version=${candidate#/boot/vmlinuz-}
done
[ -n "$kernel" ] || skip "no kernel in /boot with the module rdma_rxe (Debian: linux-image-amd64)"

modules=/lib/modules/$version/kernel
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir"/initrd/{bin,modules,proc,sys,dev} "$dir/out"
out=${GUEST_OUT:-$dir/out}
cp "$busybox" "$dir/initrd/bin/busybox"
names=()
for module in drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_legacy_dev \
  drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci fs/netfs/netfs fs/fscache/fscache net/9p/9pnet \
  net/9p/9pnet_virtio fs/9p/9p fs/overlayfs/overlay; do
  [ -f "$modules/$module.ko" ] || continue  # a part of the kernel itself
  cp "$modules/$module.ko" "$dir/initrd/modules/"
  names+=("${module##*/}")
done
# The first program of the guest: mounts this machine's files, with a file system in memory over them.
cat > "$dir/initrd/init" << END
#!/bin/busybox sh
B=/bin/busybox
echo GUEST_UP
\$B mount -t proc p /proc; \$B mount -t sysfs s /sys; \$B mount -t devtmpfs d /dev
for module in ${names[*]}; do \$B insmod /modules/\$module.ko; done
\$B mkdir -p /below /above /root
\$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose host /below
\$B mount -t tmpfs t /above; \$B mkdir -p /above/upper /above/work
\$B mount -t overlay -o lowerdir=/below,upperdir=/above/upper,workdir=/above/work o /root
\$B mount -t devtmpfs d /root/dev; \$B mount -t proc p /root/proc; \$B mount -t sysfs s /root/sys
\$B mkdir -p /root/dev/shm /root/dev/pts /root/guest-out
\$B mount -t tmpfs t /root/dev/shm; \$B mount -t devpts p /root/dev/pts
\$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out /root/guest-out
\$B chroot /root /bin/bash < /dev/null -c "\$(\$B cat /guest)"
echo "GUEST_STATUS=\$?"
\$B poweroff -f
END
chmod +x "$dir/initrd/init"
{
  cat << 'END'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
set -e
hostname guest
echo "127.0.0.1 localhost guest" > /etc/hosts
ulimit -l unlimited -n 20000
ip link set lo up
modprobe -a crc32_generic crc32-pclmul veth sch_netem ib_uverbs rdma_ucm rdma_rxe
ip link add roce0 type veth peer name roce1
for i in 0 1; do
  ip address add 10.78.0.$((i + 1))/24 dev roce$i
  ip link set roce$i mtu 4200 up
  # What goes from one address to the other shall take the wire, although both are this system's.
  sysctl -qw net.ipv4.conf.roce$i.accept_local=1 net.ipv4.conf.roce$i.rp_filter=0
  ip route add 10.78.0.$((2 - i)) dev roce$i table 100
done
for i in 0 1; do
  ip neighbour add 10.78.0.$((2 - i)) lladdr "$(cat /sys/class/net/roce$((1 - i))/address)" dev roce$i nud permanent
  rdma link add rxe$i type rxe netdev roce$i
done
ip rule add pref 100 iif lo to 10.78.0.0/24 lookup 100
ip rule add pref 200 lookup local
ip rule delete pref 0
set +e
END
  printf 'cd %q; ' "$PWD"
  printf '%q ' "$@"
  echo
} > "$dir/initrd/guest"
(cd "$dir/initrd" && find . | cpio -o -H newc --quiet | gzip -1) > "$dir/initrd.gz"

deadline=$((SECONDS + ${GUEST_SECONDS:-600}))
boot() {  # ACCELERATOR CPU
  timeout --foreground "$((deadline - SECONDS))" qemu-system-x86_64 -machine q35 -accel "$1" -cpu "$2" -m 4G -smp 2 \
    -kernel "$kernel" -initrd "$dir/initrd.gz" -append "console=ttyS0 quiet panic=-1" \
    -display none -serial stdio -monitor none -no-reboot \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=out,path=$out,security_model=none" \
    -device virtio-9p-pci,fsdev=out,mount_tag=out < /dev/null | sed -u 's,\r,,g' | tee "$dir/log"
}
# Nested or restricted virtualization may have /dev/kvm and run no Linux that does not know of it.
kvm_works() {
  case ${GUEST_KVM:-auto} in
    never) return 1 ;;
    auto) grep -qwE 'vmx|svm' /proc/cpuinfo || return 1 ;;
  esac
  [ -w /dev/kvm ] || return 1
  timeout --foreground 15 qemu-system-x86_64 -machine q35 -accel kvm -cpu host -m 1G -smp 2 -kernel "$kernel" \
    -initrd "$dir/initrd.gz" -append "console=ttyS0 quiet panic=-1 rdinit=/bin/busybox -- echo GUEST_UP" \
    -display none -serial stdio -monitor none -no-reboot < /dev/null > "$dir/probe" 2>&1 || true
  grep -q GUEST_UP "$dir/probe"
}

rc=0
if kvm_works; then
  echo "the guest runs under KVM"
  boot kvm host || rc=$?
else
  boot tcg,thread=multi max || rc=$?
fi
[ "$rc" -ne 124 ] || { echo "the guest has not ended within ${GUEST_SECONDS:-600} s"; exit 124; }
status=$(sed -n 's/^GUEST_STATUS=\([0-9]*\)$/\1/p' "$dir/log" | tail -n 1)
exit "${status:-1}"
