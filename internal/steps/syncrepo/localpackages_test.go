// SPDX-License-Identifier: Apache-2.0

package syncrepo

import "testing"

func TestNamesLocalPackages(t *testing.T) {
	for _, line := range []string{
		"-e .", "--editable=.[dev]", "-e ./pkg#egg=pkg", "-e pkg", "-e file:.", "-e file:///workspace/pkg",
		".", "./pkg", "../pkg", "pkg/core", "~/pkg", ".[dev,test]",
		"einops\n-e .\n", "pkg @ file:./pkg", "pkg[a] @ file:///workspace/pkg ; python_version > '3.8'", "file:pkg",
		"wheels/a-1-py3-none-any.whl", "a-1-py3-none-any.whl",
		"a-1.tar.gz", "-f ./wheels", "--find-links wheels", "-f file:wheels", "-e git+file:///workspace/pkg", `-e "./my pkg"`, "-e \\\n .",
		"${ROOT}/pkg", "  -e .  # this one",
	} {
		if !namesLocalPackages(line) {
			t.Errorf("%q is not local, want local", line)
		}
	}
	for _, line := range []string{
		"", "# -e .", "einops==0.8.1", "einops[a,b]>=1.0,<2 ; sys_platform == 'linux'",
		"-r sub/requirements.txt", "--constraint=./constraints.txt", "-i https://example.org/simple/",
		"--extra-index-url https://example.org/a/b", "-e git+https://example.org/a/b.git@main#egg=b",
		"b @ https://example.org/b-1-py3-none-any.whl", "https://example.org/b-1.zip",
		"b @ git+ssh://git@example.org/a/b", "-f https://example.org/wheels/", "einops==0.8.1 --hash=sha256:ab/c", "--no-binary :all:",
		"zope.interface", "ruamel.yaml.zip-tools",
	} {
		if namesLocalPackages(line) {
			t.Errorf("%q is local, want an index or a URL", line)
		}
	}
}
