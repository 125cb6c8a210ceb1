fomo-stream group --check
code=$?
case $code in
7 | 8 | 9) # no broker, no topic, no permission to ask
    echo "The settings were not checked. The upgrade goes on." >&2
    ;;
0) ;;
*)
    echo "The upgrade was refused before it changed anything." >&2
    exit $code
    ;;
esac
