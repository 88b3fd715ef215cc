// SPDX-License-Identifier: Apache-2.0

// Package datasets is the command mlenv data: it copies files of this machine, or of URLs, to the claim that trainings
// mount as /datasets.
package datasets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

const progressEvery = 5 * time.Second

type options struct {
	kube        kube.Flags
	environment string
	to, list    string
	// local are folders and files of this machine, remote URLs.
	local  []string
	remote []agent.Download
}

// Command returns the command mlenv data.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "data FOLDER|FILE|URL...",
		Short: "Copy folders, files or URLs to the datasets claim, verified",
		Long: `Copy folders and files of this machine, or files at URLs, to the claim that trainings mount as /datasets; if each node has
a claim of its own, to each. The contents of a folder go to the top of the claim, or into the folder that --to names.

A temporary pod without any rights mounts the claim and receives the files. A file gets its name only when it is complete and
its SHA-256 is right. Files that are already on the claim are not sent again, and a file that broke off continues at its next
byte, after a broken connection by itself, and if you repeat an interrupted command. No file is ever deleted.

The pod downloads URLs itself. --list names a file with a line per URL: the URL, and optionally its SHA-256 and the path on
the claim. With a SHA-256 an interrupted download continues.

Exit code 0: all files are on the claim; 1: a file is not; 2: wrong usage.`,
		Example: `  mlenv data ./imagenet --to=imagenet
  mlenv data https://example.com/text8.zip --to=text8
  mlenv data --list=urls.txt`,
		Args: func(_ *cobra.Command, args []string) error { return o.parse(args) },
	}
	cmd.RunE = envflags.Connected(&o.kube, o.run)
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	flags.StringVar(&o.environment, "name", objects.DefaultName, "name of the environment that uses the claim")
	flags.StringVar(&o.to, "to", ".", "folder on the claim, created if necessary")
	flags.StringVar(&o.list, "list", "", "file with a line per URL: URL [SHA-256 [PATH]]")
	return cmd
}

// parse reports all mistakes in arguments, --to and --list.
func (o *options) parse(args []string) error {
	var problems []error
	o.to = strings.TrimPrefix(strings.TrimPrefix(path.Clean(o.to), "/datasets"), "/")
	o.to = cmp.Or(o.to, ".")
	problems = append(problems, command.Want(filepath.IsLocal(o.to), "--to %q: want a folder on the claim, as imagenet or /datasets/imagenet",
		o.to))
	for _, arg := range args {
		if !strings.Contains(arg, "://") {
			if _, err := os.Stat(arg); err != nil {
				problems = append(problems, fmt.Errorf("argument %q: %w", arg, err))
			}
			if whole, err := filepath.Abs(arg); err == nil && strings.Trim(arg, "./") == "" {
				arg = whole // messages end with its name
			}
			o.local = append(o.local, arg)
			continue
		}
		one, err := downloadOf(arg)
		problems = append(problems, err)
		o.remote = append(o.remote, one)
	}
	if o.list != "" {
		content, err := os.ReadFile(o.list)
		if err != nil {
			problems = append(problems, fmt.Errorf("--list: %w", err))
		}
		listed, err := readList(o.list, string(content))
		problems = append(problems, err)
		o.remote = append(o.remote, listed...)
	}
	problems = append(problems, command.Want(len(args) > 0 || o.list != "", "an argument is missing: want a folder, a file, a URL or --list"))
	names := map[string]string{}
	for _, one := range o.remote {
		if other, twice := names[one.Path]; twice && one.Path != "" {
			problems = append(problems, fmt.Errorf("%s and %s: both would be %s on the claim", other, one.URL, one.Path))
		}
		names[one.Path] = one.URL
	}
	return errors.Join(problems...)
}

func readList(name, content string) (listed []agent.Download, err error) {
	var problems []error
	for i, line := range strings.Split(content, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) > 3 {
			problems = append(problems, fmt.Errorf("%s:%d: %d words: want URL [SHA-256 [PATH]]", name, i+1, len(fields)))
			continue
		}
		one, err := downloadOf(fields[0], fields[1:]...)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %w", name, i+1, err))
			continue
		}
		listed = append(listed, one)
	}
	return listed, errors.Join(problems...)
}

// downloadOf reads a URL, and optionally its SHA-256 and path.
func downloadOf(text string, more ...string) (one agent.Download, err error) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.Host == "" {
		return one, fmt.Errorf("URL %q: want https://HOST/PATH", text)
	}
	if parsed.User != nil {
		return one, fmt.Errorf("URL of %s: it contains a user or password, which processes and logs would show: want a URL without", parsed.Host)
	}
	one = agent.Download{URL: text, Path: path.Base(parsed.Path)}
	if len(more) > 0 {
		if one.Content = tree.Digest(strings.ToLower(more[0])); !one.Content.Valid() {
			return one, fmt.Errorf("SHA-256 %q: want 64 hexadecimal digits", more[0])
		}
	}
	if len(more) > 1 {
		one.Path = path.Clean(more[1])
	}
	if one.Path == "." || one.Path == "/" || !filepath.IsLocal(one.Path) {
		return one, fmt.Errorf("URL %q: it names no file: want a path after it, in --list", text)
	}
	return one, nil
}

func (o *options) run(cmd *cobra.Command, clients *kube.Clients, _ []string) (err error) {
	ctx := cmd.Context()
	// Find mistakes in a folder before there is a pod.
	manifests := make([]tree.Manifest, len(o.local))
	for i, local := range o.local {
		fmt.Fprintf(cmd.ErrOrStderr(), "Reading %s.\n", local)
		if manifests[i], err = manifestOf(ctx, local); err != nil {
			return err
		}
	}
	e := env.Of(clients, o.environment)
	claims, err := e.Claims(ctx, e.Datasets)
	if err != nil {
		if fail.ReasonOf(err) == fail.InvalidInput {
			return fail.Advise(err, "mlenv up -n %s   # creates them; mlenv down keeps them", clients.Namespace)
		}
		return err
	}
	for _, name := range claims {
		claim := fetch.Claim{Name: name, For: "mlenv-data", Notes: cmd.ErrOrStderr()}
		for i, local := range o.local {
			upload, err := fetch.Send(ctx, clients, claim, folderOf(local), manifests[i], o.to, progress(cmd))
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is on claim %s: %s, %s; %d new\n", local, name, humanize.Count(upload.Files, "file"),
				humanize.Bytes(upload.Bytes), upload.Sent)
		}
		if len(o.remote) > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "Claim %s downloads %s.\n", name, humanize.Count(len(o.remote), "file"))
			if err := fetch.Download(ctx, clients, claim, o.remote, o.to, cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("filling claim %s: %w", name, err)
			}
		}
	}
	return nil
}

func folderOf(local string) string {
	if info, err := os.Stat(local); err == nil && !info.IsDir() {
		return filepath.Dir(local)
	}
	return local
}

func manifestOf(ctx context.Context, local string) (tree.Manifest, error) {
	folder := folderOf(local)
	if folder == local {
		return tree.Scan(ctx, folder, nil)
	}
	return tree.Scan(ctx, folder, tree.Only([]string{filepath.Base(local)}))
}

func progress(cmd *cobra.Command) func(sent, all int64) {
	var last time.Time
	return func(sent, all int64) {
		switch now := time.Now(); {
		case last.IsZero():
			last = now
		case now.Sub(last) >= progressEvery:
			last = now
			fmt.Fprintf(cmd.ErrOrStderr(), "  %s of %s sent\n", humanize.Bytes(sent), humanize.Bytes(all))
		}
	}
}
