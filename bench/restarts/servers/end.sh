case $1 in
restart) stop && start ;;
kill) killed && start ;;
*) "$1" ;;
esac
