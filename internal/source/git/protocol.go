package git

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/source/git/pack"
)

// agentName is how servers know this client. Some route by its beginning.
const agentName = "git/2.40-ml-dev-env"

// link carries a conversation with a server.
type link interface {
	// open asks for the conversation and returns what the server says first.
	open() (*lineReader, error)
	// send sends a message and returns where the answer comes.
	send(message []byte) (*lineReader, error)
	close()
}

// ref is a name that the repository has.
type ref struct {
	name string
	hash pack.Hash
	// target is the ref that a symbolic one means, empty where the server does not tell.
	target string
}

// session is one conversation, in version 2 of the protocol or, where the
// server does not know it or is not told, 0 or 1.
type session struct {
	link link
	v2   bool
	// features are what the server can: in version 2 the commands with their options.
	features map[string]string
	// advertised are all refs, which versions before 2 send unasked.
	advertised []ref
}

// converse begins a session.
func converse(l link) (*session, error) {
	in, err := l.open()
	if err != nil {
		return nil, err
	}
	s := &session{link: l, features: map[string]string{}}
	m, text, err := in.text()
	if err == nil && m == line && strings.HasPrefix(text, "# service=") {
		if m, text, err = in.text(); err == nil && m == flush {
			m, text, err = in.text()
		}
	}
	if err == nil && text == "version 1" {
		m, text, err = in.text()
	}
	if err != nil {
		return nil, err
	}
	if text == "version 2" {
		s.v2 = true
		return s, s.readFeatures(in)
	}
	return s, s.readRefs(in, m, text)
}

// readFeatures reads what a version 2 server can.
func (s *session) readFeatures(in *lineReader) error {
	for {
		m, text, err := in.text()
		if err != nil {
			return unexpected(err)
		}
		if m != line {
			return s.checkFormat()
		}
		name, value, _ := strings.Cut(text, "=")
		s.features[name] = value
	}
}

// readRefs reads the refs of an earlier server; the first line has its features too.
func (s *session) readRefs(in *lineReader, m mark, text string) error {
	targets := map[string]string{}
	for first := true; m == line; first = false {
		name, features, _ := strings.Cut(text, "\x00")
		if first {
			for feature := range strings.FieldsSeq(features) {
				key, value, _ := strings.Cut(feature, "=")
				if key == "symref" {
					from, to, _ := strings.Cut(value, ":")
					targets[from] = to
				}
				s.features[key] = value
			}
		}
		hex, name, _ := strings.Cut(name, " ")
		// A repository without commits has one line for its features, and
		// what a tag means comes as a second line.
		if name != "capabilities^{}" && !strings.HasSuffix(name, "^{}") && hex != "shallow" {
			hash, ok := pack.ParseHash(hex)
			if !ok {
				return fmt.Errorf("reading the server's branches: %q: want a hash and a name", text)
			}
			s.advertised = append(s.advertised, ref{name: name, hash: hash, target: targets[name]})
		}
		var err error
		if m, text, err = in.text(); err != nil {
			return unexpected(err)
		}
	}
	if err := s.checkFormat(); err != nil {
		return err
	}
	if _, ok := s.features["side-band-64k"]; !ok && len(s.advertised) > 0 {
		return errors.New("reading the server's features: no side-band-64k: want a git server of this century")
	}
	return nil
}

func (s *session) checkFormat() error {
	if format := s.features["object-format"]; format != "" && format != "sha1" {
		return fmt.Errorf("reading the server's features: the repository's hashes are %s: want sha1", format)
	}
	return nil
}

// refs returns the refs whose names begin with one of the prefixes.
func (s *session) refs(prefixes ...string) ([]ref, error) {
	if !s.v2 {
		return slices.DeleteFunc(slices.Clone(s.advertised), func(r ref) bool {
			return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(r.name, p) })
		}), nil
	}
	var message request
	message.line("command=ls-refs\n")
	message.line("agent=%s\n", agentName)
	message.delim()
	message.line("symrefs\n")
	for _, prefix := range prefixes {
		message.line("ref-prefix %s\n", prefix)
	}
	message.flush()
	in, err := s.link.send(message.Bytes())
	if err != nil {
		return nil, err
	}
	var refs []ref
	for {
		m, text, err := in.text()
		if err != nil {
			return nil, unexpected(err)
		}
		if m != line {
			return refs, nil
		}
		fields := strings.Fields(text)
		if len(fields) < 2 {
			return nil, fmt.Errorf("reading the server's branches: %q: want a hash and a name", text)
		}
		hash, ok := pack.ParseHash(fields[0])
		if !ok {
			return nil, fmt.Errorf("reading the server's branches: %q: want a hash and a name", text)
		}
		r := ref{name: fields[1], hash: hash}
		for _, field := range fields[2:] {
			if target, ok := strings.CutPrefix(field, "symref-target:"); ok {
				r.target = target
			}
		}
		refs = append(refs, r)
	}
}

// anyCommit says whether the server gives a commit that no ref names.
func (s *session) anyCommit() bool {
	_, reachable := s.features["allow-reachable-sha1-in-want"]
	return s.v2 || reachable
}

// can says whether fetching has an option.
func (s *session) can(option string) bool {
	if s.v2 {
		return slices.Contains(strings.Fields(s.features["fetch"]), option)
	}
	_, ok := s.features[option]
	return ok
}

// order is what to fetch.
type order struct {
	wants []pack.Hash
	// history takes the commits before the wanted ones too.
	history bool
	// commits takes commits only, no trees and files.
	commits bool
}

// pack sends an order and returns the pack.
func (s *session) pack(o order) (io.Reader, error) {
	shallow := !o.history && s.can("shallow")
	message := s.order(o, shallow)
	in, err := s.link.send(message)
	if err != nil {
		return nil, err
	}
	if s.v2 {
		err = skipTo(in, "packfile")
	} else {
		err = skipAnswer(in, shallow)
	}
	if err != nil {
		return nil, err
	}
	return &demultiplexer{in: in}, nil
}

func (s *session) order(o order, shallow bool) []byte {
	var message request
	if s.v2 {
		message.line("command=fetch\n")
		message.line("agent=%s\n", agentName)
		message.delim()
		message.line("ofs-delta\n")
		message.line("no-progress\n")
	}
	for i, want := range o.wants {
		if !s.v2 && i == 0 {
			message.line("want %s%s\n", want, s.options(shallow, o.commits))
			continue
		}
		message.line("want %s\n", want)
	}
	if shallow {
		message.line("deepen 1\n")
	}
	if o.commits {
		message.line("filter tree:0\n")
	}
	if !s.v2 {
		message.flush()
		message.line("done\n")
		return message.Bytes()
	}
	message.line("done\n")
	message.flush()
	return message.Bytes()
}

// options are the features of an earlier server that are used. Azure refuses
// who cannot multi_ack, though nothing is ever acknowledged here.
func (s *session) options(shallow, filter bool) string {
	text := " side-band-64k"
	for _, feature := range []string{"ofs-delta", "no-progress", "multi_ack", "multi_ack_detailed"} {
		if s.can(feature) {
			text += " " + feature
		}
	}
	if shallow {
		text += " shallow"
	}
	if filter {
		text += " filter"
	}
	return text + " agent=" + agentName
}

// skipTo reads a version 2 answer up to the section.
func skipTo(in *lineReader, section string) error {
	for {
		m, text, err := in.text()
		if err != nil {
			return unexpected(err)
		}
		if m == line && text == section {
			return nil
		}
		if m == flush || m == end {
			return fmt.Errorf("reading the server's answer: it has no %s", section)
		}
	}
}

// skipAnswer reads what an earlier server says before the pack: where history
// is cut, if asked, and that nothing is in common.
func skipAnswer(in *lineReader, shallow bool) error {
	for shallow {
		m, text, err := in.text()
		if err != nil {
			return unexpected(err)
		}
		if m == line && !strings.HasPrefix(text, "shallow ") && !strings.HasPrefix(text, "unshallow ") {
			return fmt.Errorf("reading the server's answer: %q: want where history is cut", text)
		}
		shallow = m == line
	}
	m, text, err := in.text()
	if err != nil {
		return unexpected(err)
	}
	if m != line || text != "NAK" {
		return fmt.Errorf("reading the server's answer: %q: want NAK", text)
	}
	return nil
}
