/* A healthy small service. cpu PCT | wal MS | dial MS | maps N | --health */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <time.h>
#include <poll.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <netinet/in.h>
static double now(clockid_t c){struct timespec t;clock_gettime(c,&t);return t.tv_sec+t.tv_nsec/1e9;}
static void ready(void){puts("ready");fflush(stdout);}
static unsigned gateway(void){
	FILE *f=fopen("/proc/net/route","r");char l[256],i[32];unsigned d,g;
	if(!f)return 0;
	while(fgets(l,sizeof l,f))
		if(sscanf(l,"%31s %x %x",i,&d,&g)==3&&d==0&&g){fclose(f);return g;}
	fclose(f);return 0;
}
int main(int c,char**v){
	const char*m=c>1?v[1]:"cpu";int n=c>2?atoi(v[2]):15;
	if(!strcmp(m,"cpu")){
		volatile unsigned x=1;ready();
		for(;;){double e=now(CLOCK_PROCESS_CPUTIME_ID)+0.01*n/100;
			while(now(CLOCK_PROCESS_CPUTIME_ID)<e)for(int i=0;i<500;i++)x=x*1664525+i;
			usleep(10000-100*n);}
	}
	if(!strcmp(m,"wal")){
		int f=open("/data/wal",O_RDWR|O_CREAT,0600);char b[4096];memset(b,'w',sizeof b);
		if(f<0){perror("wal");return 1;}
		ready();
		for(long i=0;;i++){
			if(pwrite(f,b,sizeof b,(i%2048)*4096)<0)perror("write");
			fdatasync(f);usleep(n*1000);}
	}
	if(!strcmp(m,"dial")){
		struct sockaddr_in a={.sin_family=AF_INET,.sin_port=htons(9)};
		a.sin_addr.s_addr=gateway();if(!a.sin_addr.s_addr)a.sin_addr.s_addr=htonl(INADDR_LOOPBACK);
		ready();
		for(;;){int s=socket(AF_INET,SOCK_STREAM|SOCK_NONBLOCK,0);
			if(s>=0){connect(s,(void*)&a,sizeof a);struct pollfd p={s,POLLOUT,0};poll(&p,1,1000);close(s);}
			usleep(n*1000);}
	}
	if(!strcmp(m,"maps")){	/* a runtime with many mappings, which also maps and unmaps buffers */
		long ps=4096;char*a=mmap(0,(size_t)n*ps*2,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
		if(a==MAP_FAILED)return 1;
		for(int i=0;i<n;i++){a[(size_t)i*2*ps]=1;mprotect(a+(size_t)i*2*ps,ps,PROT_READ);}
		ready();
		for(;;){double e=now(CLOCK_PROCESS_CPUTIME_ID)+0.001;volatile unsigned x=1;
			char*b=mmap(0,65536,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
			if(b!=MAP_FAILED){b[0]=1;munmap(b,65536);}
			while(now(CLOCK_PROCESS_CPUTIME_ID)<e)x++;
			usleep(9000);}
	}
	return 0;
}
