/* A dump job: two files of MB MiB in turn, buffered writes as fast as possible, fdatasync at the end of each. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
int main(int c,char**v){
	int mb=atoi(v[1]),f[2];char*b=malloc(1<<20);memset(b,9,1<<20);
	f[0]=open("/data/dump0",O_WRONLY|O_CREAT,0600);f[1]=open("/data/dump1",O_WRONLY|O_CREAT,0600);
	if(f[0]<0||f[1]<0){perror("dump");return 1;}
	puts("ready");fflush(stdout);
	for(int k=0;;k^=1){
		for(int i=0;i<mb;i++)if(pwrite(f[k],b,1<<20,(off_t)i<<20)<0){perror("write");usleep(100000);}
		fdatasync(f[k]);}
}
