/* A package manager: N writers unpack trees of small files, each with fsync and rename, then remove the tree and begin again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/stat.h>
int main(int c,char**v){
	int n=c>1?atoi(v[1]):8;char b[12000];memset(b,'j',sizeof b);
	for(int w=0;w<n;w++)if(!fork())for(int r=0;;r++){
		char d[64],f[128],g[128];snprintf(d,sizeof d,"/data/pkg%d-%d",w,r);mkdir(d,0700);
		for(int i=0;i<400;i++){
			snprintf(f,sizeof f,"%s/%d.dpkg-new",d,i);snprintf(g,sizeof g,"%s/%d",d,i);
			int h=open(f,O_WRONLY|O_CREAT|O_TRUNC,0600);
			if(h>=0){if(write(h,b,1000+i*27%11000)<0)perror("write");fsync(h);close(h);rename(f,g);}
		}
		for(int i=0;i<400;i++){snprintf(g,sizeof g,"%s/%d",d,i);unlink(g);}
		rmdir(d);
	}
	puts("ready");fflush(stdout);for(;;)pause();
}
