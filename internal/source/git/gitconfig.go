package git

import "strings"

// setting is one value in git's configuration format.
type setting struct {
	// section and key are in lower case; name is the quoted part of
	// [section "name"].
	section, name, key, value string
}

// parseConfig reads git's configuration format, as .gitmodules and .lfsconfig
// have it. Lines that are not understood are skipped.
func parseConfig(text string) []setting {
	var settings []setting
	var section, name string
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for text != "" {
		var raw string
		raw, text, _ = strings.Cut(text, "\n")
		raw = strings.TrimSpace(raw)
		if strings.HasPrefix(raw, "[") {
			section, name, raw = parseSection(raw)
		}
		key, _, hasValue := strings.Cut(raw, "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if key == "" || key[0] == '#' || key[0] == ';' {
			continue
		}
		value := "true"
		if hasValue {
			_, rest, _ := strings.Cut(raw, "=")
			for strings.HasSuffix(rest, `\`) && !strings.HasSuffix(rest, `\\`) && text != "" {
				var more string
				more, text, _ = strings.Cut(text, "\n")
				rest = rest[:len(rest)-1] + more
			}
			value = parseValue(rest)
		}
		settings = append(settings, setting{section, name, key, value})
	}
	return settings
}

// parseSection reads [section "name"] and returns what follows it.
func parseSection(raw string) (section, name, rest string) {
	inner := raw[1:]
	quoted, escaped := false, false
	for i, r := range inner {
		switch {
		case escaped:
			escaped = false
			name += string(r)
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		case quoted:
			name += string(r)
		case r == ']':
			return strings.ToLower(strings.TrimSpace(section)), name, strings.TrimSpace(inner[i+1:])
		default:
			section += string(r)
		}
	}
	return "", "", ""
}

// parseValue removes quotes, escapes and comments.
func parseValue(raw string) string {
	var value strings.Builder
	kept := 0 // up to here spaces count
	quoted, escaped := false, false
	for _, b := range []byte(strings.TrimLeft(raw, " \t")) {
		switch {
		case escaped:
			escaped = false
			switch b {
			case 'n':
				b = '\n'
			case 't':
				b = '\t'
			}
			value.WriteByte(b)
			kept = value.Len()
		case b == '\\':
			escaped = true
		case b == '"':
			quoted = !quoted
			kept = value.Len()
		case !quoted && (b == '#' || b == ';'):
			return value.String()[:kept]
		default:
			value.WriteByte(b)
			if quoted || b != ' ' && b != '\t' {
				kept = value.Len()
			}
		}
	}
	return value.String()[:kept]
}
