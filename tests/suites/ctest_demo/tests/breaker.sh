# Runs after the victim. Inserted before it, it breaks the victim in another way than the polluter does.
. "$(dirname "$0")/lib.sh"
mkdir -p "$plans"
echo 2 > "$plans/draft.header"
