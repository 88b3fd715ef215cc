package tree

import "path"

// Only leaves out everything but what lies at the paths, which are relative, with
// slashes, and taken as they are, not as patterns. No paths, or "." among them, leave out nothing
// but what is always left out. There may be as many as a dataset has files.
func Only(paths []string) *Ignore {
	only := map[string]bool{}
	for _, p := range paths {
		if p = path.Clean(p); p == "." {
			return nil
		}
		only[p] = true
		for at := path.Dir(p); at != "."; at = path.Dir(at) {
			if _, known := only[at]; known {
				break
			}
			only[at] = false
		}
	}
	if len(only) == 0 {
		return nil
	}
	return &Ignore{only: only}
}

// wanted is true of what lies at or below one of the paths of Only, and of the folders that lead there.
func (i *Ignore) wanted(name string) bool {
	if _, known := i.only[name]; known {
		return true
	}
	for at := path.Dir(name); at != "."; at = path.Dir(at) {
		if i.only[at] {
			return true
		}
	}
	return false
}
