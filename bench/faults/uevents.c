// uevents WRITERS: a provisioning script asks the kernel to announce a device again and again, as
// "udevadm trigger" does. The kernel sends each announcement to all listeners of the host.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long writers = argc > 1 ? atol(argv[1]) : 0;
	if (writers < 1 || writers > 16) { fprintf(stderr, "usage: uevents WRITERS\n"); return 2; }
	int fd = open("/sys/class/mem/null/uevent", O_WRONLY);
	if (fd < 0) { perror("/sys/class/mem/null/uevent"); return 1; }
	printf("ready\n");
	fflush(stdout);
	for (long i = 1; i < writers; i++)
		if (fork() == 0) break;
	for (;;)
		if (pwrite(fd, "change", 6, 0) != 6) { perror("uevent"); return 1; }
}
