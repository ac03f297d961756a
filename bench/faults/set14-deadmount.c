/* A mount whose server does not answer any more (a FUSE mount without an answer stands for a dead NFS or storage server); df and collectors hang on it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
int main(void){
	char d[]="/var/tmp/set14-nfs-XXXXXX",o[128],n[64];
	if(!mkdtemp(d)){perror("mkdtemp");return 1;}
	int f=open("/dev/fuse",O_RDWR);
	if(f<0){snprintf(n,sizeof n,"%s.dev",d);mknod(n,S_IFCHR|0600,makedev(10,229));f=open(n,O_RDWR);unlink(n);}
	if(f<0){perror("fuse");return 1;}
	snprintf(o,sizeof o,"fd=%d,rootmode=40000,user_id=0,group_id=0",f);
	if(mount("nas:/export",d,"fuse",MS_NOSUID|MS_NODEV,o)){perror("mount");return 1;}
	for(int k=0;;k++){	/* 8 at once, then one more every 4 s, 30 at most */
		if(k<30&&!fork()){
			struct stat s;struct statfs t;close(f);
			if(k%2)stat(d,&s);else statfs(d,&t);
			for(;;)pause();}
		if(k==8){usleep(200000);puts("ready");fflush(stdout);}
		if(k>=8)sleep(4);
	}
}
