package objects

// Certificates are the keys of one environment, in PEM. The zero value stands for
// those that are in the cluster already.
type Certificates struct {
	// CA signed the other two; nobody has its key.
	CA []byte
	// ServerCert and ServerKey are the agents', of all nodes.
	ServerCert, ServerKey []byte
	// ClientCert and ClientKey are the steps'.
	ClientCert, ClientKey []byte
}

func (c Certificates) empty() bool {
	return len(c.CA)+len(c.ServerCert)+len(c.ServerKey)+len(c.ClientCert)+len(c.ClientKey) == 0
}
