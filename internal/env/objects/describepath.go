package objects

import "regexp"

// phrases say paths in people's words; the first that matches counts.
var phrases = []struct {
	path  *regexp.Regexp
	words string
}{
	{regexp.MustCompile(`^spec\.replicas$`), "nodes"},
	{regexp.MustCompile(`^spec\.volumeClaimTemplates$`), "storage mode"},
	{regexp.MustCompile(`^spec\.volumeClaimTemplates\[(.*)\]\.resources\.requests\[storage\]$`), "size of claim $1"},
	{regexp.MustCompile(`^spec\.volumeClaimTemplates\[(.*)\]\.storageClassName$`), "storage class of claim $1"},
	{regexp.MustCompile(`\.containers\[train\]\.image$`), "image"},
	{regexp.MustCompile(`\.initContainers\[agent\]\.image$`), "steps image"},
	{regexp.MustCompile(`\.env\[(.*)\]$`), "variable $1"},
	{regexp.MustCompile(`\[train\]\.resources\.\w+\[nvidia\.com/gpu\]$`), "GPUs of a node"},
	{regexp.MustCompile(`\[train\]\.resources\.requests\[memory\]$`), "memory asked for"},
	{regexp.MustCompile(`\[train\]\.resources\.limits\[memory\]$`), "memory limit"},
	{regexp.MustCompile(`\[train\]\.resources\.requests\[cpu\]$`), "processors asked for"},
	{regexp.MustCompile(`\[train\]\.resources\.limits\[cpu\]$`), "processor limit"},
	{regexp.MustCompile(`\.volumes\[dev-shm\]\.emptyDir\.sizeLimit$`), "size of /dev/shm"},
	{regexp.MustCompile(`\.volumes\[trusted-ca\]`), "trusted CA"},
	{regexp.MustCompile(`\.volumeMounts\[(.*)\]`), "what is mounted at $1"},
	{regexp.MustCompile(`\.nodeAffinity$`), "nodes that may be used"},
	{regexp.MustCompile(`\.tolerations$`), "tolerations"},
	{regexp.MustCompile(`\.imagePullSecrets$`), "pull secret"},
	{regexp.MustCompile(`\.serviceAccountName$`), "service account"},
}

// describePath is the path itself where there are no words for it.
func describePath(path string) string {
	for _, phrase := range phrases {
		if match := phrase.path.FindStringSubmatchIndex(path); match != nil {
			return string(phrase.path.ExpandString(nil, phrase.words, path, match))
		}
	}
	return path
}
