package holder

import "holdfast/internal/platform/linux/tinyelf"

func arm64() []byte {
	return tinyelf.Words(
		// fd = socket(AF_UNIX, SOCK_SEQPACKET|SOCK_CLOEXEC, 0)
		0xd10403ff, // sub sp, sp, #256
		0xd2800020, // mov x0, #1
		0xd28000a1, // mov x1, #5
		0xf2a00101, // movk x1, #8, lsl #16
		0xd2800002, // mov x2, #0
		0xd28018c8, // mov x8, #198
		0xd4000001, // svc #0
		0xaa0003f3, // mov x19, x0
		// connect(fd, address); on an error exit
		0x10000801, // adr x1, #256
		0xd2800262, // mov x2, #19
		0xd2801968, // mov x8, #203
		0xd4000001, // svc #0
		0xb5000720, // cbnz x0, exit
		// getsockopt(fd, SOL_SOCKET, SO_PEERCRED); exit if the uid is not 0
		0x52800185, // mov w5, #12
		0xb90013e5, // str w5, [sp, #16]
		0xaa1303e0, // mov x0, x19
		0xd2800021, // mov x1, #1
		0xd2800222, // mov x2, #17
		0x910003e3, // mov x3, sp
		0x910043e4, // add x4, sp, #16
		0xd2801a28, // mov x8, #209
		0xd4000001, // svc #0
		0xb50005e0, // cbnz x0, exit
		0xb94007e5, // ldr w5, [sp, #4]
		0x350005a5, // cbnz w5, exit
		// one byte of data: at sp+112
		0xd2800026, // mov x6, #1
		0x9101c3e5, // add x5, sp, #112
		0xa9041be5, // stp x5, x6, [sp, #64]
		// loop: recvmsg(fd, MSG_CMSG_CLOEXEC) with room for a control message at sp+80
		0xa9007fff, // stp xzr, xzr, [sp]
		0xf9002bff, // str xzr, [sp, #80]
		0x910103e5, // add x5, sp, #64
		0xa9011be5, // stp x5, x6, [sp, #16]
		0x910143e5, // add x5, sp, #80
		0xd2800307, // mov x7, #24
		0xa9021fe5, // stp x5, x7, [sp, #32]
		0xaa1303e0, // mov x0, x19
		0x910003e1, // mov x1, sp
		0xd2a80002, // mov x2, #1073741824
		0xd2801a88, // mov x8, #212
		0xd4000001, // svc #0
		// exit unless one byte and SCM_RIGHTS with one descriptor have arrived
		0xf100041f, // cmp x0, #1
		0x54000381, // b.ne exit
		0xb94053e5, // ldr w5, [sp, #80]
		0x710050bf, // cmp w5, #20
		0x54000321, // b.ne exit
		0x294b1fe5, // ldp w5, w7, [sp, #88]
		0x710004bf, // cmp w5, #1
		0x540002c1, // b.ne exit
		0x710004ff, // cmp w7, #1
		0x54000281, // b.ne exit
		// setns(descriptor, CLONE_NEWNET)
		0xb94063f4, // ldr w20, [sp, #96]
		0xaa1403e0, // mov x0, x20
		0xd2a80001, // mov x1, #1073741824
		0xd2802188, // mov x8, #268
		0xd4000001, // svc #0
		// the result
		0xb90073e0, // str w0, [sp, #112]
		// close(descriptor)
		0xaa1403e0, // mov x0, x20
		0xd2800728, // mov x8, #57
		0xd4000001, // svc #0
		// sendto(fd, the result of setns, 4, MSG_NOSIGNAL); then from the loop
		0xaa1303e0, // mov x0, x19
		0x9101c3e1, // add x1, sp, #112
		0xd2800082, // mov x2, #4
		0xd2880003, // mov x3, #16384
		0xd2800004, // mov x4, #0
		0xd2800005, // mov x5, #0
		0xd28019c8, // mov x8, #206
		0xd4000001, // svc #0
		0xf100101f, // cmp x0, #4
		0x54fffb00, // b.eq loop
		// exit: exit_group(1)
		0xd2800020, // mov x0, #1
		0xd2800bc8, // mov x8, #94
		0xd4000001, // svc #0
	)
}
