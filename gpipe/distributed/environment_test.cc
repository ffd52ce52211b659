#include "gpipe/distributed/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

#include "gpipe/distributed/world_options.h"
#include "gpipe/testing/thrown.h"

namespace gpipe {
namespace {

using Variables = std::map<std::string, std::string>;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

LaunchEnvironment read(const Variables& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  return testing::thrown<std::invalid_argument>([&] { read(variables); });
}

// Returns "rank/world_size local_rank/local_world_size".
std::string ranks(const LaunchEnvironment& environment) {
  return std::to_string(environment.rank) + "/" +
         std::to_string(environment.world_size) + " " +
         std::to_string(environment.local_rank) + "/" +
         std::to_string(environment.local_world_size);
}

std::string master(const LaunchEnvironment& environment) {
  return environment.master_address + ":" +
         std::to_string(environment.master_port);
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "1234"}};

const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_ID", "4712345"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                          {"SLURM_STEP_NODELIST", "node[003-005,9],other"}};

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};

const Variables kHydra = {{"PMI_RANK", "2"},
                          {"PMI_SIZE", "4"},
                          {"MPI_LOCALRANKID", "0"},
                          {"MPI_LOCALNRANKS", "2"},
                          {"MASTER_ADDR", "10.0.0.7"}};

TEST(EnvironmentTest, IsRankZeroOfOneWhereNothingIsSet) {
  const LaunchEnvironment alone = read({});
  EXPECT_EQ(ranks(alone), "0/1 0/1");
  EXPECT_EQ(master(alone), "127.0.0.1:29500");
  EXPECT_FALSE(alone.store_is_served);
  EXPECT_EQ(alone.source,
            "no launcher (RANK and similar variables are not set)");
}

TEST(EnvironmentTest, ReadsTorchruns) {
  const LaunchEnvironment environment = read(kTorchrun);
  EXPECT_EQ(ranks(environment), "5/8 1/4");
  EXPECT_EQ(master(environment), "node1:1234");
  EXPECT_FALSE(environment.store_is_served);
  EXPECT_EQ(environment.source, "torchrun (RANK, WORLD_SIZE)");
}

TEST(EnvironmentTest, KnowsThatTorchrunsAgentServesTheStore) {
  const char* const name = "TORCHELASTIC_USE_AGENT_STORE";
  EXPECT_TRUE(read(with(kTorchrun, {{name, "True"}})).store_is_served);
  EXPECT_FALSE(read(with(kTorchrun, {{name, "False"}})).store_is_served);
  // Only torchrun sets it.
  EXPECT_FALSE(read(with(kOpenMpi, {{name, "True"}})).store_is_served);
}

TEST(EnvironmentTest, ReadsSlurms) {
  const LaunchEnvironment environment = read(kSlurm);
  EXPECT_EQ(ranks(environment), "5/7 1/2");
  EXPECT_EQ(master(environment), "node003:17345");
  EXPECT_EQ(environment.source, "Slurm (SLURM_PROCID, SLURM_NTASKS)");
}

TEST(EnvironmentTest, LetsMasterAddrAndMasterPortGoBeforeWhatSlurmSays) {
  EXPECT_EQ(master(read(with(kSlurm, {{"MASTER_ADDR", "::1"},
                                      {"MASTER_PORT", "80"},
                                      {"SLURM_STEP_NODELIST", "n["}}))),
            "::1:80");
}

TEST(EnvironmentTest, TakesTheJobsListsWhereTheStepsAreMissing) {
  Variables variables = with(kSlurm, {{"SLURM_TASKS_PER_NODE", "9,1,3"},
                                      {"SLURM_NTASKS_PER_NODE", "8"},
                                      {"SLURM_JOB_NODELIST", "other"}});
  EXPECT_EQ(ranks(read(variables)), "5/7 1/2");
  variables = without(variables, "SLURM_STEP_TASKS_PER_NODE");
  EXPECT_EQ(ranks(read(variables)), "5/7 1/3");
  variables = without(variables, "SLURM_TASKS_PER_NODE");
  EXPECT_EQ(ranks(read(variables)), "5/7 1/7");  // fewer than 8
  variables = without(variables, "SLURM_STEP_NODELIST");
  EXPECT_EQ(master(read(variables)), "other:17345");
  // Numbers of a federation have 32 bits.
  EXPECT_EQ(master(read(with(variables, {{"SLURM_JOB_ID", "4294901760"}}))),
            "other:16760");
  variables = without(variables, "SLURM_JOB_ID");
  EXPECT_EQ(master(read(variables)), "other:29500");
}

TEST(EnvironmentTest, FindsTheFirstHostOfSlurmsLists) {
  const std::map<std::string, std::string> hosts = {
      {"one", "one"},
      {"one,two", "one"},
      {"node[003-005,9],other", "node003"},
      {"node[9,003-005]", "node9"},
      {"a1-b[1-2]c", "a1-b1c"},
      {"rack[0-1]n[07-12].site", "rack0n07.site"},
      {"[4-5]", "4"},
  };
  for (const auto& [list, host] : hosts) {
    EXPECT_EQ(
        read(with(kSlurm, {{"SLURM_STEP_NODELIST", list}})).master_address,
        host)
        << list;
  }
}

TEST(EnvironmentTest, RefusesAListOfHostsThatIsNone) {
  for (const char* list :
       {"", ",a", "a[", "a[1-2", "a]", "a[]", "a[x]", "a[-1]", "a[[1]]"}) {
    EXPECT_EQ(error_of(with(kSlurm, {{"SLURM_STEP_NODELIST", list}})),
              std::string("SLURM_STEP_NODELIST is '") + list +
                  "', but must be a list of hosts such as "
                  "node[003-005,9],other; or set MASTER_ADDR to the host of "
                  "rank 0");
  }
}

TEST(EnvironmentTest, FindsTheTasksOfEachMachineInSlurmsList) {
  const auto local_size = [](const char* list, const char* node) {
    return read(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", list},
                              {"SLURM_NODEID", node},
                              {"SLURM_LOCALID", "0"}}))
        .local_world_size;
  };
  EXPECT_EQ(local_size("4", "0"), 4);
  EXPECT_EQ(local_size("2(x3),1", "2"), 2);
  EXPECT_EQ(local_size("2(x3),1", "3"), 1);
  EXPECT_EQ(local_size("1,3(x2),2(x4)", "2"), 3);
  EXPECT_EQ(local_size("1,3(x2),2(x4)", "6"), 2);
}

TEST(EnvironmentTest, RefusesAListOfTasksThatIsNone) {
  const std::string name = "SLURM_STEP_TASKS_PER_NODE";
  for (const char* list : {"", "x", "2(x3", "2(x)", "2(x0)", "0", "-1",
                           "2(x3)1", ",2", "2(x99999999999)"}) {
    EXPECT_EQ(error_of(with(kSlurm, {{name, list}})),
              name + " is '" + list +
                  "', but must be a list of numbers of tasks such as 2(x3),1");
  }
  EXPECT_EQ(error_of(with(kSlurm, {{"SLURM_NODEID", "4"}})),
            "SLURM_NODEID is 4, but SLURM_STEP_TASKS_PER_NODE is '2(x3),1', "
            "that is of 4 machines: it must be from 0 to 3");
  EXPECT_EQ(error_of(without(kSlurm, name)),
            "none of SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE and "
            "SLURM_NTASKS_PER_NODE is set: set the last one to the number of "
            "ranks on this machine");
}

TEST(EnvironmentTest, RefusesASlurmLocalIdThatTheMachineDoesNotHave) {
  EXPECT_EQ(error_of(with(kSlurm, {{"SLURM_LOCALID", "2"}})),
            "SLURM_LOCALID is '2', but must be a whole number, from 0 to 1, "
            "since the number of tasks on this machine is 2");
}

TEST(EnvironmentTest, IsAloneInABatchScriptThatAskedForNoTasks) {
  EXPECT_EQ(ranks(read({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}})),
            "0/1 0/1");
}

TEST(EnvironmentTest, DoubtsRanksThatSrunHasNotStarted) {
  EXPECT_EQ(read(without(kSlurm, "SLURM_STEP_ID")).source,
            "Slurm (SLURM_PROCID, SLURM_NTASKS), but not SLURM_STEP_ID: was it "
            "started by srun?");
}

TEST(EnvironmentTest, ReadsOpenMpis) {
  const LaunchEnvironment environment = read(kOpenMpi);
  EXPECT_EQ(ranks(environment), "3/4 3/4");
  EXPECT_EQ(master(environment), "127.0.0.1:29500");
  EXPECT_EQ(environment.source,
            "Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)");
}

TEST(EnvironmentTest, ReadsPmis) {
  const LaunchEnvironment environment = read(kHydra);
  EXPECT_EQ(ranks(environment), "2/4 0/2");
  EXPECT_EQ(master(environment), "10.0.0.7:29500");
  EXPECT_EQ(environment.source, "mpiexec (PMI_RANK, PMI_SIZE)");
  EXPECT_EQ(
      ranks(read(
          {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.7"}})),
      "2/4 0/1");
}

TEST(EnvironmentTest, ReadsPmixWhereSomebodySaysTheSize) {
  const LaunchEnvironment environment =
      read({{"PMIX_RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(ranks(environment), "2/4 0/1");
  EXPECT_EQ(environment.source, "PMIx (PMIX_RANK, WORLD_SIZE)");
  EXPECT_EQ(error_of({{"PMIX_RANK", "2"}}),
            "PMIX_RANK is '2', but WORLD_SIZE is not set: set it to the number "
            "of ranks");
}

TEST(EnvironmentTest, BelievesTheInnermostOfSeveralLaunchers) {
  Variables all = kSlurm;
  EXPECT_EQ(ranks(read(all)), "5/7 1/2");
  // srun --mpi=pmi2 sets these, too; Slurm's variables say more.
  all = with(all, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}});
  EXPECT_EQ(ranks(read(all)), "5/7 1/2");
  // mpiexec in a job.
  all = with(all, kHydra);
  EXPECT_EQ(ranks(read(all)), "2/4 0/2");
  all = with(all, kOpenMpi);
  EXPECT_EQ(ranks(read(all)), "3/4 3/4");
  all = with(all, kTorchrun);
  EXPECT_EQ(ranks(read(all)), "5/8 1/4");
}

TEST(EnvironmentTest, HasOneRankPerMachineWhereNobodySaysOtherwise) {
  const Variables variables =
      without(without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE");
  EXPECT_EQ(ranks(read(variables)), "5/8 0/1");
}

TEST(EnvironmentTest, NeedsMasterAddrForSeveralMachines) {
  EXPECT_EQ(error_of(without(kTorchrun, "MASTER_ADDR")),
            "MASTER_ADDR is not set: set it to the host name or address of the "
            "machine of rank 0, the same for all ranks. (It would be 127.0.0.1 "
            "if all 8 ranks were on one machine, but 4 of them are on this "
            "one, according to torchrun (RANK, WORLD_SIZE).)");
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "MASTER_ADDR is not set: set it to the host name or address of the "
            "machine of rank 0, the same for all ranks. (It would be 127.0.0.1 "
            "if all 2 ranks were on one machine, but 1 of them is on this one, "
            "according to torchrun (RANK, WORLD_SIZE).)");
  EXPECT_EQ(error_of(with(kTorchrun, {{"MASTER_ADDR", ""}})),
            "MASTER_ADDR is '', but must be the host name or address of the "
            "machine of rank 0");
}

TEST(EnvironmentTest, MeetsOnThisMachineIfAllRanksAreHere) {
  EXPECT_EQ(master(read({{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"}})),
            "127.0.0.1:29500");
}

TEST(EnvironmentTest, RefusesHalfOfAPair) {
  EXPECT_EQ(error_of(without(kTorchrun, "WORLD_SIZE")),
            "RANK is '5', but WORLD_SIZE is not set: set it to the number of "
            "ranks");
  EXPECT_EQ(error_of(without(kTorchrun, "RANK")),
            "WORLD_SIZE is '8', but RANK is not set: set it to the number of "
            "this process among the ranks, from 0");
  EXPECT_EQ(error_of(without(kTorchrun, "LOCAL_WORLD_SIZE")),
            "LOCAL_RANK is '1', but LOCAL_WORLD_SIZE is not set: set it to the "
            "number of ranks on this machine");
  EXPECT_EQ(error_of(without(kTorchrun, "LOCAL_RANK")),
            "LOCAL_WORLD_SIZE is '4', but LOCAL_RANK is not set: set it to the "
            "number of this process among the ranks on this machine, from 0");
  EXPECT_EQ(error_of(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
            "OMPI_COMM_WORLD_RANK is '3', but OMPI_COMM_WORLD_SIZE is not set: "
            "set it to the number of ranks");
}

TEST(EnvironmentTest, NamesTheVariableThatIsNoNumber) {
  for (const auto& [name, range] :
       Variables{{"RANK", "from 0 to 7, since WORLD_SIZE is 8"},
                 {"WORLD_SIZE", "1 or more"},
                 {"LOCAL_RANK", "from 0 to 3, since LOCAL_WORLD_SIZE is 4"},
                 {"LOCAL_WORLD_SIZE", "from 1 to 8, since WORLD_SIZE is 8"},
                 {"MASTER_PORT", "from 1 to 65535"}}) {
    for (const char* text : {"", "x", "1x", " 1", "1.5", "-1", "+1", "9999999",
                             "99999999999999999999"}) {
      if (name == "WORLD_SIZE" && text == std::string("9999999")) continue;
      EXPECT_EQ(
          error_of(with(kTorchrun, {{name, text}})),
          name + " is '" + text + "', but must be a whole number, " + range);
    }
  }
}

TEST(EnvironmentTest, NamesTheRankThatIsOutsideOfItsRange) {
  EXPECT_EQ(error_of(with(kTorchrun, {{"RANK", "8"}})),
            "RANK is '8', but must be a whole number, from 0 to 7, since "
            "WORLD_SIZE is 8");
  EXPECT_EQ(error_of(with(kTorchrun, {{"WORLD_SIZE", "0"}})),
            "WORLD_SIZE is '0', but must be a whole number, 1 or more");
  EXPECT_EQ(error_of(with(kTorchrun, {{"MASTER_PORT", "0"}})),
            "MASTER_PORT is '0', but must be a whole number, from 1 to 65535");
  EXPECT_EQ(error_of(with(kHydra, {{"MPI_LOCALNRANKS", "5"}})),
            "MPI_LOCALNRANKS is '5', but must be a whole number, from 1 to 4, "
            "since PMI_SIZE is 4");
}

TEST(EnvironmentTest, ReadsThatOfThisProcess) {
  for (const auto& [name, value] : kTorchrun) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  const LaunchEnvironment environment = read_environment();
  for (const auto& [name, value] : kTorchrun) unsetenv(name.c_str());
  EXPECT_EQ(ranks(environment), "5/8 1/4");
  EXPECT_EQ(master(environment), "node1:1234");
}

TEST(WorldOptionsTest, TakesTheBackendFromTheEnvironment) {
  unsetenv("GPIPE_BACKEND");
  EXPECT_EQ(WorldOptions::from_environment().backend, "");
  setenv("GPIPE_BACKEND", "ucc", 1);
  EXPECT_EQ(WorldOptions::from_environment().backend, "ucc");
  unsetenv("GPIPE_BACKEND");
}

TEST(WorldOptionsTest, ASecretThatNothingWouldKeepIsAnError) {
  for (const char* const name : {"GPIPE_SECRET_FILE", "GPIPE_TLS_CERTIFICATE",
                                 "GPIPE_TLS_KEY", "GPIPE_TLS_AUTHORITY"}) {
    setenv(name, "file", 1);
    EXPECT_THAT([] { WorldOptions::from_environment(); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr(name), HasSubstr("not encrypted"),
                          HasSubstr("docs/security.md"))));
    unsetenv(name);
  }
}

}  // namespace
}  // namespace gpipe
