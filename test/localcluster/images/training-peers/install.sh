# SPDX-License-Identifier: Apache-2.0
# As in MPI Operator's own images, for users other than root: ssh on port 2222 trusts every host, because it cannot write known_hosts.
rm -f /etc/ssh/ssh_host_*
printf 'Port 2222\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' > /etc/ssh/ssh_config.d/mpi.conf
printf 'Port 2222\nPidFile none\nHostKey /home/mpi/.ssh/id_rsa\nStrictModes no\n' > /etc/ssh/sshd_config.mpi
# ssh and sshd refuse a user without a line in passwd. On OpenShift the user is a random one of group root, whose pod adds the line.
chmod g=u /etc/passwd
mkdir -p /home/mpi
chmod g=u /home/mpi
