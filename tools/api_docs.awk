# Turns the comments of our headers into Doxygen's. In our headers
# - the comment at the top of a file describes the file,
# - a comment describes all declarations of its paragraph: up to the next empty line or
#   the next comment,
# - a trailing comment after a member describes that member.

function depth(line) {
  match(line, /^ */)
  return RLENGTH
}

/^ *\/\// {
  text = $0
  sub(/^ *\/\/ ?/, "", text)
  if (text ~ /^SPDX-License-Identifier/) { print ""; next }
  # Escape the characters that begin Doxygen commands and HTML tags.
  if (text !~ /`/) gsub(/[@<#\\]/, "\\\\&", text)
  # An example is indented by two blanks more than the text; Markdown needs four.
  if (text ~ /^  /) text = "    " text
  line = "/// " text
  if (!begun) {
    begun = top = 1
    line = "/// \\file\n" line  # from here on, line numbers are too high by one
  }
  if (!in_comment) { comment = ""; of = depth($0) }
  in_comment = 1
  comment = comment line "\n"
  print line
  next
}

/^ *$/ {
  # No declaration follows the comment, so it describes none.
  comment = top = ""
  in_comment = 0
  print
  next
}

{
  begun = 1
  is_inner = depth($0) != of || $0 ~ /^ *(\}|#|public:|private:|protected:)/
  if (comment != "" && !in_comment && whole && !is_inner) printf "%s", comment
  in_comment = 0
  line = $0
  if (match(line, /[;,{] +\/\/ /)) {
    code = substr(line, 1, RSTART)
    line = code "  ///< " substr(line, RSTART + RLENGTH)
  } else {
    code = line
  }
  print line
  if (code ~ /^ *(struct|class|enum|namespace|union) .*\{$/) {
    comment = ""
    in_enum = code ~ /^ *enum /
  }
  if (code ~ /^ *\}/) in_enum = 0
  # The declaration ends here.
  whole = code ~ /[;}]$/ || (in_enum && code ~ /,$/)
}
