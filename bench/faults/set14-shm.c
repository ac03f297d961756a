/* A database whose parallel workers take segments of /dev/shm: nearly all is taken, further segments are refused. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/statvfs.h>
int main(void){
	struct statvfs s;char n[64];
	if(statvfs("/dev/shm",&s)){perror("shm");return 1;}
	long long all=(long long)s.f_blocks*s.f_frsize/1048576;int k=0;
	if(all>600){fprintf(stderr,"/dev/shm of %lld MiB is too large\n",all);return 1;}
	for(long long t=2;t<=all-2;t+=2){
		snprintf(n,sizeof n,"/dev/shm/PostgreSQL.%d",k++);
		int f=open(n,O_RDWR|O_CREAT,0600);
		if(f<0||posix_fallocate(f,0,2<<20)){unlink(n);break;}
		close(f);}
	puts("ready");fflush(stdout);
	for(;;){	/* a query needs 8 MiB more, and fails; its session then works a little */
		volatile unsigned x=0;
		int f=open("/dev/shm/PostgreSQL.query",O_RDWR|O_CREAT,0600);
		if(f>=0){if(posix_fallocate(f,0,8<<20))fprintf(stderr,"ERROR: could not resize shared memory segment: No space left on device\n");
			unlink("/dev/shm/PostgreSQL.query");close(f);}
		for(int i=0;i<4000000;i++)x+=i;
		usleep(200000);}
}
